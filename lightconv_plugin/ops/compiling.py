"""Functions that torch.compile does not look into. Imported when it compiles: to mark them takes seconds of imports."""

import torch

from lightconv_plugin.ops.announce import announce
from lightconv_plugin.ops.native import autograd, library, operators

# its front cannot read their rules for torch.func, and what follows need not
for function in autograd.IN_GRAPH:
    torch.compiler.allow_in_graph(function)

# decided, and logged, while it compiles, within the transforms, which it guards
for decision in (announce, library.load, operators._reason_of_kind, autograd.beyond_functions):
    torch.compiler.assume_constant_result(decision)
