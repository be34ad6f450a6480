"""The persistent cache: what searches decided and compiles made, kept between processes."""
