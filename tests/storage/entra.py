"""A stand-in for Microsoft Entra ID: it holds a service account's token to its issuer's key, audience, subject and time, and gives an access token.

Azurite takes that token by issuer, audience and time; it does not check its signature. So the exchange and the store's use of its answer are
tried here, and neither Entra's rules nor its signatures are.
"""

import base64
import json
import time
from typing import Any

from cryptography.exceptions import InvalidSignature

from json_server import JsonServer
from oidc import Issuer

TENANT = "11111111-2222-3333-4444-555555555555"
CLIENT = "66666666-7777-8888-9999-000000000000"
EXCHANGE = "api://AzureADTokenExchange"
SUBJECT = "system:serviceaccount:research:store"
STORAGE = "https://storage.azure.com"


class Refusal(ValueError):
    """Why there is no token: an error of OAuth 2.0 and its description."""

    def __init__(self, error: str, description: str) -> None:
        super().__init__(description)
        self.body = {"error": error, "error_description": description}


class Entra(JsonServer):
    """Serves until `close`. It trusts one issuer for one subject, as a federated credential does."""

    def __init__(self, address: str, trusted: Issuer) -> None:
        self.trusted = trusted
        self.exchanges = 0
        self.life_seconds = 3600
        super().__init__(address)

    def answer(self, path: str, asked: dict[str, str]) -> tuple[int, dict[str, Any]]:
        try:
            return 200, self._exchanged(path, asked)
        except Refusal as refusal:
            return 401, refusal.body

    def _exchanged(self, path: str, asked: dict[str, str]) -> dict[str, Any]:
        self.exchanges += 1
        if path != f"/{TENANT}/oauth2/v2.0/token":
            raise Refusal("invalid_request", "AADSTS90002: Tenant not found.")
        wanted = {
            "grant_type": "client_credentials",
            "scope": f"{STORAGE}/.default",
            "client_assertion_type": "urn:ietf:params:oauth:client-assertion-type:jwt-bearer",
        }
        if not wanted.items() <= asked.items():
            raise Refusal("invalid_request", "AADSTS900144: The request body misses a parameter.")
        if asked["client_id"] != CLIENT:
            raise Refusal("unauthorized_client", "AADSTS700016: Application was not found in the directory.")
        claims = self._claims(asked["client_assertion"])
        if (claims["sub"], claims["aud"]) != (SUBJECT, EXCHANGE):
            raise Refusal("invalid_client", "AADSTS700213: No matching federated identity record found.")
        if claims["exp"] < time.time():
            raise Refusal("invalid_client", "AADSTS700024: Client assertion is not within its valid time range.")
        now = int(time.time())
        given = {"iss": f"https://sts.windows.net/{TENANT}/", "aud": STORAGE, "iat": now, "nbf": now - 5}
        token = self.trusted.signed(given | {"exp": now + self.life_seconds, "appid": CLIENT})
        return {"token_type": "Bearer", "expires_in": self.life_seconds, "access_token": token}

    def _claims(self, assertion: str) -> dict[str, Any]:
        try:
            self.trusted.verify(assertion)
            text = assertion.split(".")[1]
            return dict(json.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))))
        except (InvalidSignature, ValueError, IndexError):
            raise Refusal("invalid_client", "AADSTS50027: JWT token is invalid or malformed.") from None
