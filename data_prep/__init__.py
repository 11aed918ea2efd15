"""Raw text to binarised data: download, prepare, binarise. What differs between datasets is in datasets/*.yaml."""

from data_prep.common import set_up_command

set_up_command()
