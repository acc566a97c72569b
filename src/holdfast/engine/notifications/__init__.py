"""The jobs and duties that create and deliver notifications."""
