"""Downloads by FTP."""

from collections.abc import Iterator

import pytest

from scripts.common.errors import UserError
from tests.data_prep.fetching import CONTENT, SHA256, entry, get
from tests.data_prep.ftp_server import FtpSite, serving_ftp


@pytest.fixture
def ftp(monkeypatch: pytest.MonkeyPatch) -> Iterator[FtpSite]:
    for name in ("ftp_proxy", "FTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with serving_ftp() as site:
        site.files["dir/a b.zip"] = CONTENT
        yield site


def starts(ftp: FtpSite) -> list[str]:
    """From where each transfer was asked for."""
    return [told for told in ftp.told if told.startswith(("REST", "RETR"))]


def test_user_and_password_of_the_address(tmp_path, ftp: FtpSite):
    ftp.users = {"cwmt@x": "p:w/"}
    url = ftp.url("dir/a%20b.zip", "cwmt%40x:p%3Aw%2F@")
    assert get(tmp_path, url).read_bytes() == CONTENT
    assert entry(tmp_path)["url"] == url
    with pytest.raises(UserError, match=r"answered 530 not logged in\nGet a"):
        get(tmp_path / "b", ftp.url("dir/a%20b.zip"))


def test_a_line_break_in_the_address_is_no_command(tmp_path, ftp: FtpSite):
    with pytest.raises(UserError, match="cannot fetch"):
        get(tmp_path, ftp.url("a%0D%0ADELE%20a"))
    assert not [told for told in ftp.told if told.startswith("DELE")]


def test_it_goes_on_where_it_broke(tmp_path, ftp: FtpSite):
    ftp.drop = [1000, 2000, None]
    assert get(tmp_path, ftp.url("dir/a%20b.zip")).read_bytes() == CONTENT
    retrieve = "RETR dir/a b.zip"
    assert starts(ftp) == [retrieve, "REST 1000", retrieve, "REST 3000", retrieve]


def test_a_stall_is_given_up_and_gone_on_with(tmp_path, ftp: FtpSite, capsys):
    ftp.stall = [1000, None]
    assert get(tmp_path, ftp.url("dir/a%20b.zip")).read_bytes() == CONTENT
    assert "nothing came for 0.3 s; 1,000 bytes are here" in capsys.readouterr().out


def test_a_file_that_changed_in_between_comes_whole(tmp_path, ftp: FtpSite, monkeypatch):
    ftp.drop = [1000]

    def changes(seconds: float) -> None:
        ftp.changed = "20190101000000"
        ftp.files["dir/a b.zip"] = CONTENT[::-1]

    monkeypatch.setattr("data_prep.transfer.time.sleep", changes)
    assert get(tmp_path, ftp.url("dir/a%20b.zip")).read_bytes() == CONTENT[::-1]
    assert starts(ftp)[-2:] == ["RETR dir/a b.zip"] * 2  # of which the last goes from the first byte


@pytest.mark.parametrize("unknown", [{"REST"}, {"SIZE"}, {"MDTM"}, {"SIZE", "MDTM", "REST"}])
def test_servers_that_know_little(tmp_path, ftp: FtpSite, unknown):
    ftp.unknown = unknown
    ftp.drop = [1000, None]
    assert get(tmp_path, ftp.url("dir/a%20b.zip")).read_bytes() == CONTENT
    restarted = starts(ftp)[1].startswith("REST") and "REST" not in unknown
    assert restarted == (unknown == {"SIZE"})
    ftp.drop = [1000, None]
    assert get(tmp_path / "b", ftp.url("dir/a%20b.zip"), sha256=SHA256).read_bytes() == CONTENT


def test_a_file_that_is_not_there_and_a_busy_server(tmp_path, ftp: FtpSite):
    with pytest.raises(UserError, match=r"answered 550 b: no such file\nGet a"):
        get(tmp_path, ftp.url("b"))
    ftp.busy = ["421 too many users"]
    assert get(tmp_path, ftp.url("dir/a%20b.zip")).read_bytes() == CONTENT
    with pytest.raises(UserError, match=r"Could not connect to server, 3 times in a row"):
        get(tmp_path / "b", "ftp://127.0.0.1:9/b")
