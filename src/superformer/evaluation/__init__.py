"""The accuracy of sub-networks, with the weights they inherit: of those that training watches, of candidates, of those
a user asks for."""
