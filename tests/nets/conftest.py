import pytest
import torch


@pytest.fixture(autouse=True)
def _seeded():
    """Test data may come from the global generator; what is tested may not."""
    torch.manual_seed(0)
