# Completion for bash: source this file. The words come from the program's own option tables.
_assay()
{
    local word=${COMP_WORDS[COMP_CWORD]}
    if [ "$COMP_CWORD" = 1 ]; then
        mapfile -t COMPREPLY < <(compgen -W \
            "quantize convert inspect infer compare sweep bench doctor" -- "$word")
    elif [[ $word == -* ]]; then
        mapfile -t COMPREPLY < <(compgen -W "$(assay "${COMP_WORDS[1]}" --complete 2>/dev/null)" \
            -- "$word")
    else
        mapfile -t COMPREPLY < <(compgen -f -- "$word")
    fi
}
complete -F _assay assay
