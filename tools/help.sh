# Sourced by the scripts here and in bench/ before they do anything: --help prints the comment that a script begins with.
case " ${*:-} " in
  *" --help "*)
    sed -n '2,/^[^#]/ { s/^# \{0,1\}//p; s/^#$//p; }' "$0"
    exit 0
    ;;
esac
