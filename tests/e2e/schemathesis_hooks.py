"""A check of our own for schemathesis: whatever was answered by 201 is asked for once more, and must be answered alike."""

import requests
import schemathesis


@schemathesis.check
def a_repeat_is_answered_alike(ctx, response, case):
    if case.method != "POST" or response.status_code != 201:
        return
    with requests.Session() as session:
        again = session.send(response.request)
    assert again.status_code == 201, f"the repeat was answered by {again.status_code}"
    assert again.content == response.content, f"the repeat was answered by {again.content!r}"
    assert [again.headers["location"]] == response.headers["location"], "the repeat is somewhere else"
    assert again.headers.get("idempotent-replayed") == "true", "the repeat does not say that it is one"
