"""The tests. Helpers that assert stand in `support`; pytest explains their failures as well."""

import pytest

pytest.register_assert_rewrite("tests.support")
