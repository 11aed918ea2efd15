"""The command ``python -m lightconv_plugin.export``; see ``export.write``."""

from lightconv_plugin.export.write import main

if __name__ == "__main__":
    main()
