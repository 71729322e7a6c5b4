"""The paper's evaluation and more, as experiments: `dblp experiment NAME` and `dblp report DIR`."""
