"""From environments and a policy to chunks of rows. Learns nothing."""
