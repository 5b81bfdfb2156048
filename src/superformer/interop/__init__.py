"""Networks of other tools and for them: timm, Hugging Face, ONNX Runtime, and the weights that the authors released."""
