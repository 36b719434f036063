CREATE TABLE members (
    nick TEXT PRIMARY KEY,
    card TEXT NOT NULL UNIQUE,
    plan TEXT NOT NULL
);
INSERT INTO members VALUES
    ('mallory', '5000123412341234', 'Free'),
    ('niaj', '5000567856785678', 'Pro');
