"""Text formats as line grammars: one ``.lark`` file each, the kinds of lines that it defines, and blocks of lines."""
