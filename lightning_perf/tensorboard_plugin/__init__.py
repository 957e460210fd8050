"""The PERFDOCTOR tab of TensorBoard. Imports neither torch nor lightning; loaded when it is opened."""
