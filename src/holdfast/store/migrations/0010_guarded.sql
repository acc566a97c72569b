-- Those that a second person must approve: whoever asks for their names in another certificate needs that word, too.
CREATE INDEX certificates_guarded ON certificates (id) WHERE approval_required AND state <> 'archived';
