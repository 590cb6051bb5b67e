"""A fleet's folder: where jobs that want machines meet machines that want jobs. Standard library and obstore only.

    <fleet dir>/
      fleet.json                         what its machines are to know: Settings; may be replaced at any time
      agent/<sha256>.pyz                 what they boot with, and run (fleet/member.py)
      members/<machine>/beat.json        rewritten by the machine every few seconds: Beat
      members/<machine>/left.json        the machine goes: nobody counts on it any more
      members/<machine>/failed.json      why its bootstrap gave up
      orders/00000007/order.json         create-only, numbered from 1 without gaps: Order
      orders/00000007/claims/worker-0.1  create-only: which machine runs this incarnation of a node: Holding
      orders/00000007/freed/worker-0.1   create-only: that machine has let go of it: Freed
      orders/00000007/end.json           create-only: nothing of it shall run any more: End
      watch.json                         whoever looks without being a member tells the time by it

Nobody connects to a machine, and there is no leader: who creates an object decides. One listing tells all that there
is, so a machine that waits makes two requests each time it looks.
"""
