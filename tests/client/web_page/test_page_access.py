"""The secrets of one server of the page."""

from __future__ import annotations

from regroup.web_page.page_access import PageAccess


def token(access: PageAccess) -> str:
    return access.address.partition("token=")[2]


def test_a_token_is_exchanged_once() -> None:
    access = PageAccess(port=80)
    assert access.exchange("") is None and access.exchange("wrong") is None
    cookie = access.exchange(token(access))
    assert cookie and access.has_session(cookie)
    assert access.exchange(token(access)) is None
    assert not access.has_session(token(access))


def test_nobody_has_a_session_before_the_exchange() -> None:
    access = PageAccess(port=80)
    assert not access.has_session(None) and not access.has_session(access._session)


def test_secrets_are_long_and_each_server_has_its_own() -> None:
    first, second = PageAccess(port=80), PageAccess(port=80)
    assert len(token(first)) > 40
    assert token(first) != token(second)


def test_a_host_is_the_server_by_its_port_alone() -> None:
    access = PageAccess(port=8700)
    assert access.is_own_host("127.0.0.1:8700") and access.is_own_host("localhost:8700")
    assert not access.is_own_host("localhost") and not access.is_own_host("[::1]:8700")


def test_browsers_do_not_name_the_port_80() -> None:
    access = PageAccess(port=80)
    assert access.is_own_host("127.0.0.1") and access.is_own_host("localhost:80")
    assert not access.is_own_host("evil.example") and not access.is_own_host("127.0.0.1:8700")
