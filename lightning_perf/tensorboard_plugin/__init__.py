"""The PERFDOCTOR tab of TensorBoard. Imports neither torch nor lightning, and nothing at all before it is opened."""
