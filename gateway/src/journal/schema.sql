-- The journal, schema 1. The store itself upholds one-open, immutable-binding and terminal-once against
-- slips of the code above it.

CREATE TABLE request (
    request_id   TEXT PRIMARY KEY,
    minion_id    TEXT NOT NULL,
    profile      TEXT NOT NULL,
    state_digest TEXT NOT NULL,
    state_data   TEXT,                       -- canonical JSON of a custom request
    accepted_at  TEXT NOT NULL
) STRICT;

-- immutable-binding: a request never changes and is never forgotten.
CREATE TRIGGER request_is_immutable BEFORE UPDATE ON request
BEGIN SELECT RAISE(ABORT, 'immutable-binding: a request never changes'); END;
CREATE TRIGGER request_is_kept BEFORE DELETE ON request
BEGIN SELECT RAISE(ABORT, 'immutable-binding: a request is never deleted'); END;

CREATE TABLE dispatch (
    request_id   TEXT NOT NULL REFERENCES request (request_id),
    generation   INTEGER NOT NULL CHECK (generation >= 1),
    minion_id    TEXT NOT NULL,              -- the request's, so that one_open can be an index
    jid          TEXT UNIQUE,
    claim        TEXT,                       -- JSON of record::Claim
    state        TEXT NOT NULL CHECK (state IN ('accepted', 'claimed', 'sent', 'send_uncertain',
                     'not_sent', 'refused', 'succeeded', 'failed', 'unknown')),
    detail       TEXT NOT NULL,              -- JSON of record::State
    contradicted INTEGER NOT NULL DEFAULT 0, -- 1: evidence of execution came after a definite end
    revision     INTEGER NOT NULL,           -- seq of the newest history row
    PRIMARY KEY (request_id, generation),
    CHECK ((jid IS NULL) = (claim IS NULL)),
    CHECK (state IN ('accepted', 'not_sent') OR jid IS NOT NULL)
) STRICT;

-- one-open: at most one unresolved dispatch per minion.
CREATE UNIQUE INDEX one_open ON dispatch (minion_id)
    WHERE state IN ('claimed', 'sent', 'send_uncertain', 'unknown');
CREATE INDEX awaiting ON dispatch (state) WHERE state IN ('accepted', 'claimed', 'sent', 'send_uncertain');
CREATE INDEX contradictions ON dispatch (minion_id) WHERE contradicted = 1;

CREATE TRIGGER dispatch_is_immutable BEFORE UPDATE ON dispatch
WHEN OLD.request_id IS NOT NEW.request_id OR OLD.generation IS NOT NEW.generation
  OR OLD.minion_id IS NOT NEW.minion_id
  OR (OLD.jid IS NOT NULL AND OLD.jid IS NOT NEW.jid)
  OR (OLD.claim IS NOT NULL AND OLD.claim IS NOT NEW.claim)
BEGIN SELECT RAISE(ABORT, 'immutable-binding: a claim never changes'); END;

-- terminal-once: a receipt is never replaced.
CREATE TRIGGER receipt_is_immutable BEFORE UPDATE ON dispatch
WHEN OLD.state IN ('succeeded', 'failed', 'unknown', 'refused', 'not_sent')
 AND (OLD.state IS NOT NEW.state OR OLD.detail IS NOT NEW.detail)
BEGIN SELECT RAISE(ABORT, 'terminal-once: an ended dispatch never changes'); END;
CREATE TRIGGER dispatch_is_kept BEFORE DELETE ON dispatch
BEGIN SELECT RAISE(ABORT, 'a dispatch is never deleted'); END;

-- What happened, in order, with the exact signed bytes of every piece of evidence.
CREATE TABLE history (
    seq        INTEGER PRIMARY KEY AUTOINCREMENT,
    request_id TEXT NOT NULL REFERENCES request (request_id),
    generation INTEGER NOT NULL,
    at         TEXT NOT NULL,
    event      TEXT NOT NULL,                -- JSON of record::Event
    state      TEXT NOT NULL,                -- the state's name after the event
    alarm      TEXT,
    evidence   BLOB,                         -- the reply's JSON as it was signed
    signature  BLOB
) STRICT;
CREATE INDEX history_of ON history (request_id, seq);
CREATE TRIGGER history_is_append_only BEFORE UPDATE ON history
BEGIN SELECT RAISE(ABORT, 'history is append-only'); END;
CREATE TRIGGER history_is_kept BEFORE DELETE ON history
BEGIN SELECT RAISE(ABORT, 'history is append-only'); END;
