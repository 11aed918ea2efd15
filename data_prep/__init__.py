"""From raw text to binarised data: download, prepare, binarise. The files in datasets/ describe the datasets."""

from data_prep.common import set_up_command

set_up_command()
