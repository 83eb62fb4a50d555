-- An order and its charge in one transaction, in plain SQL:
--
--   psql "$DATABASE_URL" -v ON_ERROR_STOP=1 -v order=A-17 -v amount=1500 -f examples/orders.sql
--
-- Nothing is sent here. The second INSERT writes down what is to be sent; a worker (`aftercommit work`) does it after the
-- COMMIT, and if the COMMIT does not happen, nobody ever hears of the charge.

-- The business table. (`aftercommit.effects` was made by `aftercommit migrate`.)
CREATE TABLE IF NOT EXISTS orders (id text PRIMARY KEY, amount bigint NOT NULL);

BEGIN;

INSERT INTO orders (id, amount) VALUES (:'order', :amount);

-- The key says what the charge is for, so the same order can never be charged twice: a second INSERT of it fails, and
-- every attempt of a worker sends the same key, which is how the payment server recognises a repetition.
INSERT INTO aftercommit.effects (downstream, operation, idempotency_key, payload, metadata)
VALUES (
    'payments', 'charge',
    format('order-%s/charge', :'order'),
    json_build_object('amount', :amount, 'currency', 'jpy', 'source', 'tok_visa',
                      'metadata', json_build_object('order', :'order')),
    jsonb_build_object('order', :'order')
);

COMMIT;

-- What became of it: SELECT state, last_error FROM aftercommit.status WHERE idempotency_key = 'order-A-17/charge';
