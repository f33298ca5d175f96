"""One machine or many: engines that sample, behind the `Generate` protocol."""
