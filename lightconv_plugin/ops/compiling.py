"""Functions that torch.compile does not look into. Imported only when it compiles: this import takes seconds."""

import torch

from lightconv_plugin.ops.autograd import CONSTANT, IN_GRAPH

# its front cannot read their rules for torch.func, and what follows need not
for function in IN_GRAPH:
    torch.compiler.allow_in_graph(function)

# decided, and logged, while it compiles, within the transforms, which it guards
for decision in CONSTANT:
    torch.compiler.assume_constant_result(decision)
