"""Named like a room of ours."""

NAME = "the program's own protocol"
