"""Files from the network or a folder, verified, and members of archives as streams.

    file = RemoteFile("dev.tgz", ("http://.../dev.tgz",), md5="4a3d...")
    path = fetch(file, folder, raw=None, ledger=folder / "ledger.json")
    for name, stream in named_members(path, ["dev/newstest2013.en", "dev/newstest2013.de"]):
        ...

``fetch`` returns only what has been tested: against its published length and checksum, or else against what the ledger
says came the first time. A download that was killed, or whose connection broke, goes on where it stopped.
"""

from data_prep.fetch.archives import iterate_members, named_members
from data_prep.fetch.download import fetch
from data_prep.fetch.transfer import Patience, RemoteFile

__all__ = ["Patience", "RemoteFile", "fetch", "iterate_members", "named_members"]
