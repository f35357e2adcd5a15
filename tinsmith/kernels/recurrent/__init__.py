"""RNN, GRU and LSTM layers: the products of all inputs as one dot, then step by step."""
