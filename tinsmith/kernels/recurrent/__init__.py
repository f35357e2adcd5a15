"""RNN, GRU and LSTM layers: the products of all inputs as one product, then step by step."""
