"""The image in which jobs run: its Containerfile, built by `cloudgpu image build`. See docs/guides/image.md."""
