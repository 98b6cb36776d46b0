"""TensorFlow's two distributed runs between two hosts: parameter servers, and the all-reduce."""

import json
import os

from .rendezvous import ROWS, exact, initialised, meet, nccl_output, operand, target, wrong_rows

# ruff: noqa: B905 (zip has no `strict` before Python 3.10)

NAME, TITLE, MODULE = "tensorflow", "TensorFlow", "tensorflow"
GLOO = False  # whether gloo reduces between its CPUs, on a port that the kernel chooses


def work(kind):
    """The function of a kind of run."""
    return parameter_server if kind == "parameter-server" else all_reduce


# -- the parameter server ------------------------------------------------------------------------


def parameter_server(side, tensorflow, numpy):
    """Variables on each parameter server, a product on each worker, their sum: by this master.

    Each product's operand comes from the other host's server, and both hosts are masters, so
    every way between the two is taken.
    """
    tf = getattr(getattr(tensorflow, "compat", None), "v1", tensorflow)
    me, names = side.me, side.config["addresses"]
    ports, devices = meet(side, 2, own_device(side, tf), GLOO)
    side.stage("starting its servers")
    cluster = tf.train.ClusterSpec(
        {
            job: [target(name, own[number]) for name, own in zip(names, ports)]
            for number, job in enumerate(("ps", "worker"))
        }
    )
    config = tf.ConfigProto(allow_soft_placement=False)
    config.gpu_options.allow_growth = True
    without = tf.ConfigProto(device_count={"GPU": 0})
    # Both kept to the end: a server goes with its object.
    servers = [
        tf.train.Server(cluster, job_name=job, task_index=me, config=item)
        for job, item in (("worker", config), ("ps", without))
    ]
    side.gather("waiting for the other host's servers", True)
    side.stage("computing")
    own = "side%d_" % me
    with tf.Graph().as_default() as graph:
        variables, parts, sources = [], [], []
        for task in (0, 1):
            with tf.device("/job:ps/task:%d/device:CPU:0" % task):
                sources.append(tf.placeholder(tf.float32, (ROWS, ROWS)))
                variables.append(
                    tf.get_variable(
                        own + "part%d" % task, (ROWS, ROWS), tf.float32, tf.zeros_initializer()
                    )
                )
        with tf.device("/job:ps/task:%d/device:CPU:0" % (1 - me)):
            total = tf.get_variable(own + "total", (ROWS, ROWS), tf.float32, tf.zeros_initializer())
        with tf.device("/job:worker/task:%d/device:CPU:0" % me):
            factor = tf.placeholder(tf.float32, (ROWS, ROWS))
        for task in (0, 1):
            with tf.device("/job:worker/task:%d/device:%s" % (task, devices[task])):
                parts.append(tf.matmul(variables[1 - task], factor, name="product%d" % task))
        fill = [tf.assign(*pair) for pair in zip(variables, sources)]
        add = tf.assign_add(total, tf.add_n(parts, name="total"))
        start = tf.global_variables_initializer()
    metadata, options = tf.RunMetadata(), tf.RunOptions(output_partition_graphs=True)
    operands, b = [operand(numpy, 10 * me + task) for task in (1, 2)], operand(numpy, 10 * me)
    with tf.Session(servers[0].target, graph=graph, config=config) as session:
        session.run(start)
        session.run(fill, dict(zip(sources, operands)))
        numbers, _ = session.run([parts, add], {factor: b}, options, metadata)
        added = session.run(total)
        placed = placement(metadata)
        if not placed:  # 1.0 returns no graphs of remote devices, but the devices that spent time
            options = tf.RunOptions(trace_level=tf.RunOptions.FULL_TRACE)
            session.run([parts, add], {factor: b}, options, metadata)
            placed = placement(metadata)
    for task in (0, 1):
        name = own + "part%d" % task
        side.document["variables"].append({"task": task, "device": placed.get(name)})
        side.document["products"].append(
            {
                "task": task,
                "device": placed.get("product%d" % task),
                "wrong": wrong_rows(numpy, exact(numpy, operands[1 - task], b), numbers[task]),
            }
        )
    side.document["variables"].append({"task": 1 - me, "device": placed.get(own + "total")})
    side.document["sum"] = {"wrong": wrong_rows(numpy, exact(numpy, sum(operands), b), added)}
    side.gather("waiting for the other host to finish", True)


def placement(metadata):
    """Which device each part was really given to: {node: device}, of what was run."""
    found = {
        node.node_name: device.device
        for device in metadata.step_stats.dev_stats
        for node in device.node_stats
    }
    found.update(
        (node.name, node.device)
        for part in metadata.partition_graphs
        for node in part.node
        if "MatMul" in node.op or "Var" in node.op
    )
    return found


def own_device(side, tf):
    """This worker's device: the declared kind; undeclared, a GPU if one is listed."""
    declared = side.config["gpus"]
    visible = declared if declared is not None else int(tf.test.is_gpu_available())
    side.document["device"] = "GPU:0" if visible else "CPU:0"
    return side.document["device"]


# -- the all-reduce ------------------------------------------------------------------------------


def all_reduce(side, tensorflow, numpy):
    """Each replica of both hosts multiplies, and gets the sum of all: MultiWorkerMirrored."""
    tf, kind = tensorflow, "NCCL" if side.config["kind"] == "nccl" else "RING"
    nccl = nccl_output()
    ports, _devices = meet(side, 1, None, GLOO)
    workers = [target(name, own[0]) for name, own in zip(side.config["addresses"], ports)]
    os.environ["TF_CONFIG"] = json.dumps(
        {"cluster": {"worker": workers}, "task": {"type": "worker", "index": side.me}}
    )
    side.stage("starting its server")
    # As many on each host: the strategy knows no other way.
    devices = tf.config.experimental
    if side.config["gpus"] is not None:
        cards = devices.list_physical_devices("GPU")[: side.config["gpus"]]
        devices.set_visible_devices(cards, "GPU")
    strategy = multi_worker(tf.distribute, kind)
    side.document.update(communication=kind, in_sync=int(strategy.num_replicas_in_sync))
    a, b = operand(numpy, 1), operand(numpy, 2)

    def replica(left, right):
        product = tf.linalg.matmul(left, right)
        return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, product)

    run = getattr(strategy, "run", None) or strategy.experimental_run_v2
    step = tf.autograph.experimental.do_not_convert(replica)
    side.stage("computing")
    # Arguments: a product of constants is folded away before it is placed. Told apart by host, not
    # by replica: 2.0 numbers the replicas of each host from 0.
    with tf.device("/CPU:0"):
        operands = tf.constant(a + side.me), tf.constant(b)
    results = strategy.experimental_local_results(
        tf.function(lambda *given: run(step, args=given), autograph=False)(*operands)
    )
    expected = exact(numpy, side.document["in_sync"] // 2 * (a + a + 1), b)
    for result in results:
        side.document["replicas"].append(
            {
                "device": getattr(result, "backing_device", None) or result.device,
                "wrong": wrong_rows(numpy, expected, result.numpy()),
            }
        )
    side.gather("waiting for the other host to finish", True)
    side.document["nccl"] = initialised(nccl)


def multi_worker(distribute, kind):
    """The strategy of every release from 2.0 on, communicating in one way and no other."""
    old = distribute.experimental
    if hasattr(old, "CommunicationOptions"):
        options = old.CommunicationOptions(
            implementation=getattr(old.CommunicationImplementation, kind)
        )
        return distribute.MultiWorkerMirroredStrategy(communication_options=options)
    return old.MultiWorkerMirroredStrategy(getattr(old.CollectiveCommunication, kind))
