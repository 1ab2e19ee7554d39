from statistics import median

import polars as pl
from hypothesis import given
from hypothesis import strategies as st

from nccl_forensics.rules.ib_link import _counters, _slower
from nccl_forensics.values.others import Others, others
from tests.growth import growth


@given(st.lists(st.integers(0, 20), min_size=2, max_size=30), st.data())
def test_the_others_of_a_value_are_all_but_one_of_its_like(values, data):
    own = data.draw(st.sampled_from(values))
    rest = sorted(values)
    rest.remove(own)
    assert others(sorted(values), own) == Others(len(rest), rest[0], median(rest), rest[-1])


def test_a_value_alone_stands_beside_nothing():
    assert others([7], 7) == Others(0, 0, 0, 0)


def test_ports_of_a_big_fabric_are_compared_in_linear_time():
    def slower(hosts):
        port = {"state": "active", "width": 4, "hca_type": "MT4129", "link_layer": "InfiniBand", "sm_lid": 1, "phys_state": "linkup"}
        names = {"device": "mlx5_0", "port": 1, "lid": 5, "node": None, "source_id": 1, "line_no": 1, "record": None}
        rows = [port | names | {"host": f"n{h}", "place": f"n{h}", "rate_gbit_s": 400.0 if h else 200.0} for h in range(hosts)]
        return list(_slower(pl.DataFrame(rows), 3))

    def counted(hosts):
        row = {"counter": "symbol_error", "last": 9, "growth": None, "tool": "perfquery", "saturated": False}
        rows = [row | {"place": f"n{h}", "host": f"n{h}", "node": None, "device": "mlx5_0", "port": 1} for h in range(hosts)]
        return list(_counters(pl.DataFrame(rows), 3, 0.1))

    assert [f.hosts for f in slower(50)] == [("n0",)]
    assert counted(50) == []
    assert growth(slower, 1500) < 9
    assert growth(counted, 1500) < 9
