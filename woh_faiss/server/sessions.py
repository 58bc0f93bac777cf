"""Who has logged in to the page: a cookie that only the token can make, and that nothing remembers.

It opens the page alone. Programs send the token itself, and writing needs that.
"""

from __future__ import annotations

import hashlib
import hmac
from http.cookies import CookieError, SimpleCookie

from starlette.responses import Response

#: Where the form for the token is, and what it is left by.
LOGIN, LOGOUT = "/login", "/logout"
#: Pages that a browser is led to the form from.
PAGES = frozenset(("/", "/about"))
#: What else belongs to the page.
_PARTS = frozenset(("/complete", LOGOUT))


def is_open(path: str) -> bool:
    """Whether a path of the page says nothing of the index: the form, and the files that it needs."""
    return path == LOGIN or path.startswith("/static/")


class Sessions:
    """Cookies of one token.

    Parameters
    ----------
    token : bytes
    """

    def __init__(self, token: bytes) -> None:
        self._token = hashlib.sha256(token).digest()
        self._value = hmac.new(token, b"woh-faiss: a session of the page", hashlib.sha256).hexdigest()
        # Servers on other ports of a machine share its cookies.
        self._name = f"woh_{hashlib.sha256(self._value.encode()).hexdigest()[:12]}"

    def is_token(self, given: bytes) -> bool:
        """Whether this is the token; in the same time whatever is given."""
        return hmac.compare_digest(hashlib.sha256(given).digest(), self._token)

    def opens(self, path: str, cookies: str) -> bool:
        """Whether a Cookie header lets through to a path of the page."""
        if not (path in PAGES or path in _PARTS or path.startswith("/thumbnails/")):
            return False
        try:
            found = SimpleCookie(cookies).get(self._name)
        except CookieError:
            return False
        return found is not None and hmac.compare_digest(found.value.encode(), self._value.encode())

    def begin(self, response: Response, secure: bool) -> Response:
        """The response with the cookie, which ends with the browser; `secure` where the address is https."""
        response.set_cookie(self._name, self._value, httponly=True, samesite="strict", secure=secure)
        return response

    def end(self, response: Response) -> Response:
        """The response that takes the cookie away."""
        response.delete_cookie(self._name, httponly=True, samesite="strict")
        return response
