"""Files from the network or a folder, verified; and members of archives as streams."""
