//! The answers that vendors document, as a table: a new rule of a profile is a new row here.

use aftercommit::outcome::{About, Finding};

/// An answer, and what it shows.
#[derive(Debug)]
pub(super) struct Case {
    pub(super) profile: &'static str,
    pub(super) status: u16,
    pub(super) headers: &'static [(&'static str, &'static str)],
    pub(super) body: &'static str,
    pub(super) finding: Finding,
    pub(super) replayed: bool,
}

type Headers = &'static [(&'static str, &'static str)];

const fn first(
    profile: &'static str,
    status: u16,
    headers: Headers,
    body: &'static str,
    finding: Finding,
) -> Case {
    Case { profile, status, headers, body, finding, replayed: false }
}

const fn replay(
    profile: &'static str,
    status: u16,
    headers: Headers,
    body: &'static str,
    finding: Finding,
) -> Case {
    Case { profile, status, headers, body, finding, replayed: true }
}

const NONE: Headers = &[];
const REPLAYED: Headers = &[("Idempotent-Replayed", "true")];
const AGAIN: Headers = &[("Stripe-Should-Retry", "true")];
const NEVER: Headers = &[("Stripe-Should-Retry", "false")];
const TRANSIENT: Headers = &[("transient-error", "true"), ("idempotency-key", "order-17")];
const FINAL: Headers = &[("transient-error", "false"), ("idempotency-key", "order-17")];
const ECHO: Headers = &[("idempotency-key", "order-17")];

const THIS: Finding = Finding::Rejected(About::ThisAttempt);
const KIND: Finding = Finding::Rejected(About::StoredKind);
const FIRST: Finding = Finding::Rejected(About::FirstRequest);

const IN_USE: &str = r#"{"error":{"type":"invalid_request_error","code":"idempotency_key_in_use"}}"#;
const LOCKED: &str = r#"{"error":{"type":"invalid_request_error","code":"lock_timeout"}}"#;
const REUSED: &str = r#"{"error":{"type":"idempotency_error","message":"Keys for idempotent requests can only be used with the same parameters"}}"#;
const DECLINED: &str = r#"{"error":{"type":"card_error","code":"card_declined"}}"#;
const DEPENDENCY: &str = r#"{"error":{"type":"api_error"}}"#;
const MISSING: &str = r#"{"error":{"type":"invalid_request_error","code":"parameter_missing"}}"#;

const ADYEN_704: &str = r#"{"status":422,"errorCode":"704","message":"request already processed or in progress","errorType":"validation"}"#;
const ADYEN_703: &str = r#"{"status":503,"errorCode":"703","message":"required resource temporarily unavailable","errorType":"internal"}"#;
const ADYEN_AMOUNT: &str =
    r#"{"status":422,"errorCode":"100","message":"No amount specified","errorType":"validation"}"#;

const GC_CONFLICT: &str = r#"{"error":{"type":"invalid_state","code":409,"errors":[{"message":"A resource has already been created with this idempotency key","reason":"idempotent_creation_conflict","links":{"conflicting_resource_id":"PM123"}}]}}"#;
const GC_SECOND: &str = r#"{"error":{"type":"invalid_state","code":409,"errors":[{"reason":"other"},{"reason":"idempotent_creation_conflict","links":{"conflicting_resource_id":"PM123"}}]}}"#;
const GC_STATE: &str =
    r#"{"error":{"type":"invalid_state","code":409,"errors":[{"reason":"mandate_is_inactive"}]}}"#;

const INCREASE_USED: &str =
    r#"{"type":"idempotency_key_already_used_error","status":409,"resource_id":"ach_transfer_1"}"#;
const SQUARE_REUSED: &str = r#"{"errors":[{"category":"INVALID_REQUEST_ERROR","code":"IDEMPOTENCY_KEY_REUSED","field":"idempotency_key"}]}"#;
const SQUARE_DECLINED: &str = r#"{"errors":[{"category":"PAYMENT_METHOD_ERROR","code":"CARD_DECLINED"}]}"#;
const PAYPAL_BUSY: &str =
    r#"{"name":"RESOURCE_CONFLICT","details":[{"issue":"PREVIOUS_REQUEST_IN_PROGRESS"}]}"#;
const PAYPAL_NO_ID: &str = r#"{"name":"INVALID_REQUEST","details":[{"issue":"PAYPAL_REQUEST_ID_REQUIRED"}]}"#;
const PAYPAL_CAPTURED: &str =
    r#"{"name":"UNPROCESSABLE_ENTITY","details":[{"issue":"ORDER_ALREADY_CAPTURED"}]}"#;

pub(super) const CASES: &[Case] = &[
    first("none", 200, NONE, "{}", Finding::Applied),
    first("none", 409, NONE, "{}", THIS),
    first("none", 503, NONE, "", Finding::Unknown),
    //
    first("ietf", 201, NONE, "{}", Finding::Applied),
    first("ietf", 400, NONE, r#"{"title":"Idempotency-Key is missing"}"#, THIS),
    first(
        "ietf",
        409,
        NONE,
        r#"{"title":"A request is outstanding for this Idempotency-Key"}"#,
        Finding::InProgress,
    ),
    first("ietf", 422, NONE, r#"{"title":"Idempotency-Key is already used"}"#, Finding::KeyReused),
    //
    first("stripe-v1", 200, NONE, r#"{"id":"ch_1"}"#, Finding::Applied),
    replay("stripe-v1", 200, REPLAYED, r#"{"id":"ch_1"}"#, Finding::Applied),
    first("stripe-v1", 409, NONE, IN_USE, Finding::InProgress),
    first("stripe-v1", 409, NONE, MISSING, THIS),
    first("stripe-v1", 429, NONE, LOCKED, Finding::NotApplied),
    first("stripe-v1", 429, NONE, "", Finding::NotApplied),
    first("stripe-v1", 400, NONE, REUSED, Finding::KeyReused),
    first("stripe-v1", 409, NONE, REUSED, Finding::KeyReused),
    first("stripe-v1", 400, NONE, MISSING, THIS),
    first("stripe-v1", 402, NONE, DECLINED, KIND),
    first("stripe-v1", 402, NEVER, DECLINED, KIND),
    first("stripe-v1", 402, AGAIN, DECLINED, Finding::Unknown),
    replay("stripe-v1", 402, REPLAYED, DECLINED, FIRST),
    replay("stripe-v1", 404, REPLAYED, MISSING, FIRST),
    first("stripe-v1", 500, NONE, "", Finding::Unknown),
    replay("stripe-v1", 500, REPLAYED, "", Finding::StoredError),
    first("stripe-v1", 500, NEVER, "", Finding::StoredError),
    first("stripe-v1", 500, AGAIN, "", Finding::Unknown),
    first("stripe-v1", 424, NONE, DEPENDENCY, Finding::Unknown),
    first("stripe-v1", 424, AGAIN, DEPENDENCY, Finding::Unknown),
    // Stored as every answer that was given during execution: asking again would only replay it.
    first("stripe-v1", 424, NEVER, DEPENDENCY, Finding::StoredError),
    replay("stripe-v1", 424, REPLAYED, DEPENDENCY, Finding::StoredError),
    first("stripe-v1", 401, NEVER, "", Finding::NotApplied),
    //
    first("stripe-v2", 200, NONE, r#"{"id":"evt_1"}"#, Finding::Applied),
    first("stripe-v2", 400, NONE, REUSED, Finding::KeyReused),
    first("stripe-v2", 409, NONE, REUSED, Finding::KeyReused),
    first("stripe-v2", 400, NEVER, MISSING, THIS),
    first("stripe-v2", 409, AGAIN, MISSING, Finding::Unknown),
    // Nothing is stored but successes: a server error is repeated, whatever the directive says of the moment.
    first("stripe-v2", 500, NEVER, "", Finding::Unknown),
    //
    first("adyen", 200, ECHO, r#"{"pspReference":"1","resultCode":"Authorised"}"#, Finding::Applied),
    first("adyen", 200, TRANSIENT, r#"{"resultCode":"Error"}"#, Finding::Unknown),
    // The profile knows no resultCode: `profiles show adyen` says so.
    first("adyen", 200, ECHO, r#"{"resultCode":"Refused"}"#, Finding::Applied),
    first("adyen", 422, ECHO, ADYEN_704, Finding::InProgress),
    first("adyen", 409, ECHO, ADYEN_704, Finding::InProgress),
    first("adyen", 422, TRANSIENT, ADYEN_704, Finding::InProgress),
    first("adyen", 422, ECHO, ADYEN_AMOUNT, THIS),
    first("adyen", 422, FINAL, ADYEN_AMOUNT, THIS),
    first("adyen", 422, TRANSIENT, ADYEN_AMOUNT, Finding::NotApplied),
    first("adyen", 503, TRANSIENT, ADYEN_703, Finding::NotApplied),
    first("adyen", 500, TRANSIENT, "", Finding::NotApplied),
    first("adyen", 500, ECHO, "", Finding::StoredError),
    first("adyen", 500, FINAL, "", Finding::StoredError),
    first("adyen", 401, NONE, "", Finding::NotApplied),
    first("adyen", 429, NONE, "", Finding::NotApplied),
    //
    first("checkout-com", 201, NONE, r#"{"id":"pay_1"}"#, Finding::Applied),
    first("checkout-com", 409, NONE, "", Finding::InProgress),
    first("checkout-com", 429, NONE, "", Finding::NotApplied),
    first("checkout-com", 422, NONE, r#"{"error_codes":["amount_invalid"]}"#, THIS),
    first("checkout-com", 500, NONE, "", Finding::StoredError),
    first("checkout-com", 502, NONE, "", Finding::StoredError),
    //
    first("gocardless", 201, NONE, r#"{"payments":{"id":"PM123"}}"#, Finding::Applied),
    replay("gocardless", 409, NONE, GC_CONFLICT, Finding::AlreadyDone),
    replay("gocardless", 409, NONE, GC_SECOND, Finding::AlreadyDone),
    first("gocardless", 409, NONE, GC_STATE, THIS),
    first("gocardless", 500, NONE, "", Finding::Unknown),
    //
    first("increase", 200, NONE, r#"{"id":"ach_transfer_1"}"#, Finding::Applied),
    replay("increase", 200, REPLAYED, r#"{"id":"ach_transfer_1"}"#, Finding::Applied),
    first("increase", 409, NONE, INCREASE_USED, Finding::KeyReused),
    first("increase", 409, NONE, r#"{"type":"invalid_operation_error","status":409}"#, THIS),
    //
    first("modern-treasury", 200, NONE, r#"{"id":"p1"}"#, Finding::Applied),
    first("modern-treasury", 409, NONE, "", Finding::InProgress),
    first("modern-treasury", 422, NONE, r#"{"errors":{"code":"parameter_invalid"}}"#, THIS),
    first("modern-treasury", 500, NONE, "", Finding::StoredError),
    //
    first("mollie", 201, NONE, r#"{"id":"tr_1"}"#, Finding::Applied),
    replay("mollie", 201, REPLAYED, r#"{"id":"tr_1"}"#, Finding::Applied),
    first("mollie", 409, NONE, r#"{"status":409,"title":"Conflict"}"#, Finding::InProgress),
    first("mollie", 400, NONE, r#"{"status":400,"title":"Bad Request"}"#, Finding::KeyReused),
    first("mollie", 422, NONE, r#"{"status":422,"field":"amount"}"#, THIS),
    replay("mollie", 422, REPLAYED, r#"{"status":422,"field":"amount"}"#, FIRST),
    //
    first("paypal-orders-v2", 201, NONE, r#"{"id":"O1","status":"CREATED"}"#, Finding::Applied),
    first("paypal-orders-v2", 201, NONE, r#"{"id":"O1","status":"COMPLETED"}"#, Finding::Applied),
    replay("paypal-orders-v2", 200, NONE, r#"{"id":"O1","status":"CREATED"}"#, Finding::Applied),
    replay("paypal-orders-v2", 200, NONE, r#"{"id":"O1","status":"SAVED"}"#, Finding::Applied),
    replay("paypal-orders-v2", 200, NONE, r#"{"id":"O1","status":"APPROVED"}"#, Finding::Applied),
    replay("paypal-orders-v2", 200, NONE, r#"{"id":"O1","status":"VOIDED"}"#, Finding::Applied),
    replay("paypal-orders-v2", 200, NONE, r#"{"id":"O1","status":"COMPLETED"}"#, Finding::Applied),
    first("paypal-orders-v2", 200, NONE, r#"{"id":"O1","status":"PAYER_ACTION_REQUIRED"}"#, Finding::Applied),
    first("paypal-orders-v2", 409, NONE, PAYPAL_BUSY, Finding::InProgress),
    first("paypal-orders-v2", 422, NONE, PAYPAL_BUSY, THIS),
    first("paypal-orders-v2", 400, NONE, PAYPAL_NO_ID, THIS),
    first("paypal-orders-v2", 422, NONE, PAYPAL_CAPTURED, THIS),
    first("paypal-orders-v2", 500, NONE, "", Finding::Unknown),
    //
    first("resend", 200, NONE, r#"{"id":"49a3999c"}"#, Finding::Applied),
    first(
        "resend",
        409,
        NONE,
        r#"{"statusCode":409,"name":"concurrent_idempotent_requests"}"#,
        Finding::InProgress,
    ),
    first(
        "resend",
        409,
        NONE,
        r#"{"statusCode":409,"name":"invalid_idempotent_request"}"#,
        Finding::KeyReused,
    ),
    first("resend", 400, NONE, r#"{"statusCode":400,"name":"invalid_idempotency_key"}"#, THIS),
    first("resend", 429, NONE, r#"{"statusCode":429,"name":"rate_limit_exceeded"}"#, Finding::NotApplied),
    //
    first("square-payments", 200, NONE, r#"{"payment":{"id":"p1","status":"COMPLETED"}}"#, Finding::Applied),
    first("square-payments", 400, NONE, SQUARE_REUSED, Finding::KeyReused),
    first("square-payments", 402, NONE, SQUARE_DECLINED, THIS),
    first("square-payments", 500, NONE, "", Finding::Unknown),
    //
    first("standard-webhooks", 204, NONE, "", Finding::Applied),
    first("standard-webhooks", 302, NONE, "", Finding::NotApplied),
    first("standard-webhooks", 303, NONE, "", Finding::Unknown),
    first("standard-webhooks", 404, NONE, "", Finding::NotApplied),
    first("standard-webhooks", 429, NONE, "", Finding::NotApplied),
    first("standard-webhooks", 408, NONE, "", Finding::Unknown),
    first("standard-webhooks", 410, NONE, "", THIS),
    first("standard-webhooks", 502, NONE, "", Finding::Unknown),
    first("standard-webhooks", 504, NONE, "", Finding::Unknown),
    //
    first("svix", 202, NONE, r#"{"id":"msg_1"}"#, Finding::Applied),
    first("svix", 409, NONE, r#"{"code":"conflict"}"#, THIS),
    first("svix", 500, NONE, "", Finding::StoredError),
    //
    first("telnyx", 200, NONE, r#"{"data":{"id":"m1"}}"#, Finding::Applied),
    first("telnyx", 422, NONE, r#"{"errors":[{"code":"10015"}]}"#, Finding::KeyReused),
    first("telnyx", 500, NONE, "", Finding::StoredError),
];
