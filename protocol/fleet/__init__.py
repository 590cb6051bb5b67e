"""Fleet folder, through which jobs get machines of a fleet. Standard library and obstore only.

    <fleet dir>/
      fleet.json                         settings of the machines: Settings; may be replaced at any time
      agent/<sha256>.pyz                 agent that the machines download at boot and run (runtime/fleet/member.py)
      members/<machine>/beat.json        rewritten by the machine every few seconds: Beat
      members/<machine>/left.json        the machine is leaving and takes no more orders
      members/<machine>/failed.json      why its bootstrap gave up: Failure
      orders/00000007/order.json         create-only, numbered from 1 without gaps: Order
      orders/00000007/claims/worker-0.1  create-only: which machine runs this incarnation of a node: Holding
      orders/00000007/freed/worker-0.1   create-only: that machine has released it: Freed
      orders/00000007/end.json           create-only: the order has ended, its programs are killed: End
      watch.json                         written by readers that are not members, to read the store's clock

Machines accept no connections, and there is no leader: create-only objects decide races. One listing shows the whole
state, so an idle machine makes two requests for each poll.
"""
