"""The command `app` without a browser."""

import sys

from roformer_tf.__main__ import main, make_parser


def test_the_app_needs_gradio(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "gradio", None)  # as if it were not installed
    assert main(["app", "no/such/folder"]) == 2
    assert 'needs Gradio: pip install "roformer-tf[app]"' in capsys.readouterr().err


def test_a_wrong_folder_is_named(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "gradio", object())
    assert main(["app", "no/such/folder"]) == 2
    assert "No checkpoint at no/such/folder" in capsys.readouterr().err


def test_it_listens_on_this_machine_alone_unless_told():
    args = make_parser().parse_args(["app", "folder"])
    assert args.host == "127.0.0.1" and args.port is None and args.share is False
