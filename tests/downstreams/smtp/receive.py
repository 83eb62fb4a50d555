"""A mail server (aiosmtpd) that prints what Python's email package reads in each mail: one JSON object a line."""

import asyncio
import base64
import email
import email.policy
import email.utils
import json
import ssl
import sys
from email.header import decode_header, make_header

from aiosmtpd.smtp import SMTP, AuthResult


def b64(data):
    return None if data is None else base64.b64encode(data).decode()


def say(thing):
    print(json.dumps(thing), flush=True)


class Handler:
    async def handle_DATA(self, server, session, envelope):
        mail = email.message_from_bytes(envelope.content, policy=email.policy.default)
        parts = [part for part in mail.walk() if not part.is_multipart()]
        text = [part for part in parts if part.get_content_type() == "text/plain" and not part.get_filename()]
        html = [part for part in parts if part.get_content_type() == "text/html" and not part.get_filename()]
        files = [part for part in parts if part.get_filename() or part["Content-ID"]]
        plain = email.message_from_bytes(envelope.content)

        # Python's own addresses keep the space between two encoded words, which RFC 2047 (6.2) says belongs to nobody.
        def addresses(name):
            found = email.utils.getaddresses(plain.get_all(name, []))
            return [[str(make_header(decode_header(shown))), address] for shown, address in found]

        say({
            "sender": envelope.mail_from,
            "recipients": envelope.rcpt_tos,
            "tls": server.transport.get_extra_info("sslcontext") is not None,
            "user": session.auth_data.decode() if session.auth_data else None,
            "id": mail["Message-ID"],
            "names": [name for name, _ in mail.items()],
            "from": addresses("From"),
            "to": addresses("To"),
            "cc": addresses("Cc"),
            "subject": str(mail["Subject"]),
            "date": str(mail["Date"]),
            "extra": mail["X-Extra"] and str(mail["X-Extra"]),
            "text": b64(text[0].get_payload(decode=True)) if text else None,
            "html": b64(html[0].get_payload(decode=True)) if html else None,
            "files": [[part.get_filename(), part.get_content_type(), b64(part.get_payload(decode=True)), part["Content-ID"]] for part in files],
            "defects": [str(defect) for part in mail.walk() for defect in part.defects],
            "longest": max((len(line) for line in envelope.content.split(b"\r\n")), default=0),
            "raw": b64(envelope.original_content),
        })
        return "250 OK"


def authenticator(server, session, envelope, mechanism, data):
    known = data.login == b"bob" and data.password == b"sekret-word-17"
    return AuthResult(success=known, handled=False, auth_data=data.login)


def context():
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(sys.argv[1], sys.argv[2])
    return context


def factory():
    settings = {"enable_SMTPUTF8": True, "decode_data": False, "data_size_limit": 64 << 20}
    if len(sys.argv) > 3:
        settings.update(authenticator=authenticator, auth_required=True)
        if sys.argv[3] == "starttls":
            settings.update(tls_context=context(), require_starttls=True)
        else:
            # The library does not know that the connection is within TLS from its first byte.
            settings.update(auth_require_tls=False)
    return SMTP(Handler(), **settings)


async def main():
    loop = asyncio.get_running_loop()
    within = context() if sys.argv[3:] == ["smtps"] else None
    server = await loop.create_server(factory, host="127.0.0.1", port=0, ssl=within)
    say({"port": server.sockets[0].getsockname()[1]})
    # It ends when whoever started it does.
    await loop.run_in_executor(None, sys.stdin.read)


asyncio.run(main())
