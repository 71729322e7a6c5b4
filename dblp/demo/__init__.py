"""The demo: DBLP and the fixed-tolerance baseline train the same model over real sockets."""
