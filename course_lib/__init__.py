"""The library of the distributed training course. This page is its map; importing it imports nothing else.

What lessons teach, about 5,000 lines, in the order in which modules may import each other:

  errors table waiting        mistakes in one line, tables, a line to wait by
  show report                 figures with their text alternatives; a run as one page
  programs                    plain programs to take away, one per way of scaling; they import nothing of ours
  colab_runtime               00  TensorFlow for Colab's TPU runtime
  devices data models         01  this machine, several devices out of one, the data, a few Keras models
  compare profiler measure    01  do two runs agree; traces; step times and memory
  collectives training        02  all-reduces that count their bytes; steps that equal one device
  step_rules                  02  what a step counts, and what it refuses
  tcp_bytes                   04  bytes that went out, from the kernel's counters
  hangs                       12  which task a job that stands still waits for, and why
  cluster                     03  jobs as real processes: here, under Slurm, on Kubernetes
  support_matrix              03  what stock Keras does under each strategy, as executed
  parameter_server            04  asynchronous training
  tpu                         05  a train step compiled for TPUs that are not here
  pipeline                    06  schedules, cuts, stages in processes
  layout_maps sharding        07  what a LayoutMap splits, and the bytes that each device holds
  accumulate                  08  several micro-batches make one update
  precision                   09  number formats, loss scaling
  planner views               10  memory and time predicted; views with controls

What stands behind them:

  lessons                     the catalogue: number, question, exercise, what a lesson needs
  exercises                   check("q1"): probes beside the learner's code, judges with targets and known mistakes
  progress doctor             a learner's points; what each lesson will do on this machine
  staff                       the class grader, certificates, the site, generated exercises; not in the wheel
  bootstrap update            set-up; a newer version
  command_list cli            the `course` command
"""
