"""FACE: tasks for assistants, over the API: what they may see and do is what their token may."""
