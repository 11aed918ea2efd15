# Stands in for XML::Parser where ROUGE-1.5.5 reads its own list of files: elements, attributes and text, nothing else.
package XML::Parser;
use strict;
use warnings;
our $VERSION = '2.46';    # XML::DOM asks for at least 2.28

sub new { my ($class, %options) = @_; return bless {%options}, $class }

sub specified_attr { return $_[0]{attributes} }

sub parsefile {
    my ($self, $path) = @_;
    open(my $file, '<', $path) or die "$path: $!";
    local $/;
    return $self->parse(<$file>);
}

sub parse {
    my ($self, $text) = @_;
    XML::Parser::Dom::Init($self);
    while ($text =~ m{\G(?:</(\w[\w-]*)>|<(\w[\w-]*)((?:\s+\w+="[^"<&]*")*)>|([^<&]+))}gc) {
        if (defined $1) { XML::Parser::Dom::End($self, $1) }
        elsif (defined $4) { XML::Parser::Dom::Char($self, $4) }
        else {
            my ($name, $rest) = ($2, $3);
            my @attributes = $rest =~ /(\w+)="([^"]*)"/g;
            $self->{attributes} = @attributes;
            XML::Parser::Dom::Start($self, $name, @attributes);
        }
    }
    die 'not understood from character ' . (pos($text) // 0) if (pos($text) // 0) != length $text;
    return XML::Parser::Dom::Final($self);
}

1;
