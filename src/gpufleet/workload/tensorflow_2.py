"""TensorFlow 2: the product of matrices, executed eagerly."""

from .tensorflow_checks import HELLO
from .timing import timed

# ruff: noqa: B905 (zip has no `strict` before Python 3.10)


class Eager:
    def __init__(self, tensorflow):
        self.tf = tensorflow
        listing = (
            getattr(tensorflow.config, "list_physical_devices", None)
            or tensorflow.config.experimental.list_physical_devices
        )
        devices = listing()
        self.names = [device.name for device in devices]
        gpus = [device for device in devices if device.device_type == "GPU"]
        self.gpus = len(gpus)
        for gpu in gpus:
            tensorflow.config.experimental.set_memory_growth(gpu, True)
        tensorflow.config.set_soft_device_placement(False)
        # Read once, before the first operation.
        tensorflow.debugging.set_log_device_placement(True)

    def local_devices(self):
        from tensorflow.python.client import device_lib

        return device_lib.list_local_devices()

    def hello(self):
        greeting = self.tf.constant(HELLO)
        return greeting.numpy(), getattr(greeting, "backing_device", None) or greeting.device

    def log_placement(self, device):
        """Enable its log of the device of each product."""
        with self.tf.device(device):
            one = self.tf.constant([[1.0]])
            self.tf.linalg.matmul(one, one).numpy()

    def multiply(self, found, a, b):
        with self.tf.device(found["requested"]):
            left, right = self.tf.constant(a), self.tf.constant(b)

            def product():
                result = self.tf.linalg.matmul(left, right)
                # One number is read: else the time would only cover queueing the product.
                result[0, 0].numpy()
                return result

            result = timed(found, product)
        found["device"] = getattr(result, "backing_device", None) or result.device
        return result.numpy()

    def tower_sum(self, devices, operands, b):
        # Nothing in it is for AutoGraph, which would take its time and write a temporary file.
        # Its operands are arguments: of constants Grappler would make the sum itself, on the CPU.
        @self.tf.function(autograph=False)
        def towers(lefts, right):
            parts = []
            for device, left in zip(devices, lefts):
                with self.tf.device(device):
                    parts.append(self.tf.linalg.matmul(left, right))
            with self.tf.device("/CPU:0"):
                return self.tf.add_n(parts)

        with self.tf.device("/CPU:0"):
            lefts, right = [self.tf.constant(a) for a in operands], self.tf.constant(b)
        return towers(lefts, right).numpy()
