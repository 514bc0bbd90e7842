"""Secrets on the command line of a script are not kept in the ledger."""

import pytest

from understudy.ledger.concealing import conceal


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("--api-key X", "--api-key ***"),
        ("--api_key=X", "--api_key=***"),
        ("--wandb-token X --lr 1", "--wandb-token *** --lr 1"),
        ("-password X", "-password ***"),
        ("--token=X=Y", "--token=***"),
        ("logger.api_key=X", "logger.api_key=***"),
        ("--hf_token --lr 1", "--hf_token --lr 1"),
        ("--data https://me:X@host/data", "--data https://me:***@host/data"),
        ("--client-secret X --secret", "--client-secret *** --secret"),
    ],
)
def test_values_of_flags_that_are_called_like_secrets(given: str, kept: str) -> None:
    assert " ".join(conceal(given.split())) == kept


@pytest.mark.parametrize("given", ["--pad-token X", "--tokens=5", "--key a", "secret.py token X", "--monkey=1", "a=b"])
def test_everything_else_is_kept(given: str) -> None:
    assert " ".join(conceal(given.split())) == given
