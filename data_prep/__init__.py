"""Raw text to binarised data: download, prepare, binarise. What differs between datasets is in datasets/*.yaml."""
