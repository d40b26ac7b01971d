# Cleans up behind a server when whoever started it is gone, however that came: usage: keeper.sh FOLDER STOP_SIGNAL.
# Each line of stdin is the process id of the server, or empty when it is down; the end of stdin is the end of the owner.
# (The system's own parent-death signal comes when the *thread* dies that started the server: too early in a test.)
trap '' HUP INT TERM
folder=$1
stop_signal=$2
server=

while read -r line; do server=$line; done

# A process id may belong to a stranger by now: a server has its folder in its arguments, or, if it writes something else
# there, as Redis does, works in it.
is_ours() {
    case $(readlink "/proc/$server/cwd" 2>/dev/null) in "$folder"*) return ;; esac
    grep -qaF -- "$folder" "/proc/$server/cmdline" 2>/dev/null
}

children() {
    for stat in /proc/[0-9]*/stat; do
        read -r line 2>/dev/null <"$stat" || continue
        set -- ${line##*) }
        [ "$2" != "$server" ] || echo "${line%% *}"
    done 2>/dev/null
}

if [ -n "$server" ] && is_ours; then
    kill -CONT $(children) "$server"
    kill -s "$stop_signal" "$server"
    for _ in 1 2 3 4 5 6 7 8 9 10; do
        is_ours || break
        sleep 0.5
    done
    if is_ours; then
        kill -STOP "$server"
        kill -KILL $(children) "$server"
    fi
fi 2>/dev/null
rm -rf -- "$folder"
