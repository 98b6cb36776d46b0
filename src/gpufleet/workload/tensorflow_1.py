"""TensorFlow 1: the product of matrices, as a graph in a session."""

from .tensorflow_checks import HELLO
from .timing import timed

# ruff: noqa: B905 (zip has no `strict` before Python 3.10)


class Graph:
    def __init__(self, tensorflow):
        from tensorflow.python.client import device_lib

        self.tf = tensorflow
        self.config = tensorflow.ConfigProto(allow_soft_placement=False)
        self.config.gpu_options.allow_growth = True
        # The first session settles how memory is taken in this process: to list the devices
        # (which in 1.0 knows no configuration) would take all of it.
        with tensorflow.Session(config=self.config):
            pass
        self.devices = (
            device_lib.list_local_devices(self.config)
            if device_lib.list_local_devices.__code__.co_argcount
            else device_lib.list_local_devices()
        )
        self.names = [device.name for device in self.devices]
        self.gpus = len([device for device in self.devices if device.device_type == "GPU"])

    def local_devices(self):
        return self.devices

    def hello(self):
        tf, metadata = self.tf, self.tf.RunMetadata()
        options = tf.RunOptions(output_partition_graphs=True)
        with tf.Graph().as_default() as graph:
            greeting = tf.constant(HELLO, name="hello")
        with tf.Session(graph=graph, config=self.config) as session:
            value = session.run(greeting, None, options, metadata)
        placed = [
            node.device
            for part in metadata.partition_graphs
            for node in part.node
            if node.name == "hello"
        ]
        return value, placed[0] if placed else None

    def log_placement(self, device):
        """Enable its log of the device of each product."""
        tf = self.tf
        config = tf.ConfigProto()
        config.CopyFrom(self.config)
        config.log_device_placement = True
        with tf.Graph().as_default() as graph:
            left, right = [tf.placeholder(tf.float32, (1, 1)) for _ in "ab"]
            with tf.device(device.lower()):
                result = tf.matmul(left, right, name="placed")
        with tf.Session(graph=graph, config=config) as session:
            session.run(result, {left: [[1.0]], right: [[1.0]]})

    def multiply(self, found, a, b):
        tf = self.tf
        with tf.Graph().as_default() as graph:
            # Placeholders: a product of constants is folded away before it is placed.
            left, right = [tf.placeholder(tf.float32, a.shape) for _ in "ab"]
            with tf.device(found["requested"].lower()):
                result = tf.matmul(left, right, name="product")
        metadata = tf.RunMetadata()
        options = tf.RunOptions(output_partition_graphs=True)
        with tf.Session(graph=graph, config=self.config) as session:
            feed = {left: a, right: b}
            numbers = timed(
                found,
                lambda: session.run(result, feed),
                lambda: session.run(result, feed, options, metadata),
            )
        placed = [
            node.device
            for part in metadata.partition_graphs
            for node in part.node
            if node.name == "product" and "MatMul" in node.op
        ]
        found["device"] = placed[0] if placed else None
        return numbers

    def tower_sum(self, devices, operands, b):
        tf = self.tf
        with tf.Graph().as_default() as graph:
            parts, feed = [], {}
            for device, a in zip(devices, operands):
                left, right = [tf.placeholder(tf.float32, b.shape) for _ in "ab"]
                with tf.device(device.lower()):
                    parts.append(tf.matmul(left, right))
                feed[left], feed[right] = a, b
            with tf.device("/cpu:0"):
                total = tf.add_n(parts)
        with tf.Session(graph=graph, config=self.config) as session:
            return session.run(total, feed)
