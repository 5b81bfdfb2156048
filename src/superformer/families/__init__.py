"""The families of networks. Each is one module, written against elastic layers and read four ways: supernet,
stand-alone network, cost, and the mapping of weights between them."""
