# Sourced by the hooks: what a subshell does before it becomes the user. Root's log, and whatever else the scheduler has
# left open here, would stay open in a process that the user may take over.

# Ends what this shell has open but its standard input, output and error.
close_others() {
  local fd
  for fd in /proc/self/fd/*; do
    fd=${fd##*/}
    [ "$fd" -le 2 ] || eval "exec $fd>&-"
  done
}

# Sends the standard error to root's log through a pipe, of which a process of root's takes the first MiB. It has a
# session of its own, since the rest of a hook's processes is killed when the hook ends.
log_by_pipe() {
  exec 2> >(exec /usr/bin/setsid /bin/sh -c '/usr/bin/head -c 1048576 >>"$1"; exec /bin/cat' sh \
    "${DLIO_LOG:-/dev/null}" >/dev/null 2>&1)
  close_others
}
