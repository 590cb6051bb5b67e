"""Records of the job dir and of a fleet's folder, which the control side and the machines exchange."""
